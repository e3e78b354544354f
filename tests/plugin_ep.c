/* A plugin execution provider that computes nothing: for tests of what happens around one.
 *
 * It declares the little that it needs of ONNX Runtime's C interface, whose functions keep their places for
 * good. What it does is chosen when it is compiled, by -DMODE=...
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { STATUS, NO_DEVICE, CREATE_FAILS, NO_NODE, ONE_NODE, ALL_NODES };

#define VERSION 23
#define FAIL 1
#define MOST_NODES 64

typedef void *Status;
typedef void *const *Table;

typedef struct {
  Table (*get_api)(uint32_t);
  const char *(*get_version)(void);
} ApiBase;

typedef struct Ep Ep;
typedef struct Factory Factory;
typedef struct Compute Compute;

struct Ep {
  uint32_t version;
  const char *(*get_name)(const Ep *);
  Status (*get_capability)(Ep *, const void *graph, void *support);
  Status (*compile)(Ep *, const void **graphs, const void **nodes, size_t count, Compute **made, void **contexts);
  void (*release_computes)(Ep *, Compute **, size_t);
  void *optional[32];
};

struct Factory {
  uint32_t version;
  const char *(*get_name)(const Factory *);
  const char *(*get_vendor)(const Factory *);
  Status (*get_devices)(Factory *, const void *const *all, size_t count, void **found, size_t most, size_t *number);
  Status (*create_ep)(Factory *, const void *const *, const void *const *, size_t, const void *, const void *, Ep **);
  void (*release_ep)(Factory *, Ep *);
  uint32_t (*get_vendor_id)(const Factory *);
  const char *(*get_version)(const Factory *);
  void *validate_compiled;
  void *create_allocator;
  void *release_allocator;
  Status (*create_transfer)(Factory *, void **);
  _Bool (*is_stream_aware)(const Factory *);
  void *optional[32];
};

struct Compute {
  uint32_t version;
  Status (*create_state)(Compute *, void *context, void **state);
  Status (*compute)(Compute *, void *state, void *context);
  void (*release_state)(Compute *, void *state);
};

static Table api;
static Table ep_api;

static Status error(const char *text) {
  return ((Status (*)(int, const char *))api[0])(FAIL, text);
}

static const char *name(const void *self) { (void)self; return "TestPluginExecutionProvider"; }
static const char *vendor(const Factory *self) { (void)self; return "nobody"; }
static const char *version(const Factory *self) { (void)self; return "1.2.3"; }
static Status create_transfer(Factory *self, void **made) { (void)self; *made = NULL; return NULL; }
static _Bool is_stream_aware(const Factory *self) { (void)self; return 0; }
static uint32_t vendor_id(const Factory *self) { (void)self; return 0; }

static Status create_state(Compute *self, void *context, void **state) {
  (void)self; (void)context;
  *state = NULL;
  return NULL;
}
static Status compute(Compute *self, void *state, void *context) {
  (void)self; (void)state; (void)context;
  return error("the plugin computes nothing");
}
static void release_state(Compute *self, void *state) { (void)self; (void)state; }

static Compute computes_nothing = {VERSION, create_state, compute, release_state};

static Status get_capability(Ep *self, const void *graph, void *support) {
  const void *nodes[MOST_NODES];
  size_t count = 0, number;
  (void)self;
  if (MODE == NO_NODE) return NULL;
  ((Status (*)(const void *, size_t *))api[344])(graph, &count);
  if (count > MOST_NODES) return error("too many nodes");
  ((Status (*)(const void *, const void **, size_t))api[345])(graph, nodes, count);
  for (number = 0; number < (MODE == ONE_NODE ? 1 : count); number++)
    ((Status (*)(void *, const void *const *, size_t, const void *))ep_api[2])(support, nodes + number, 1, NULL);
  return NULL;
}

static Status compile(Ep *self, const void **graphs, const void **nodes, size_t count, Compute **made, void **contexts) {
  size_t number;
  (void)self; (void)graphs; (void)nodes; (void)contexts;
  for (number = 0; number < count; number++) made[number] = &computes_nothing;
  return NULL;
}
static void release_computes(Ep *self, Compute **made, size_t count) { (void)self; (void)made; (void)count; }

static Ep ep = {VERSION, (const char *(*)(const Ep *))name, get_capability, compile, release_computes, {0}};

static Status get_devices(Factory *self, const void *const *all, size_t count, void **found, size_t most, size_t *number) {
  size_t at;
  *number = 0;
  if (MODE == NO_DEVICE) return NULL;
  for (at = 0; at < count && *number < most; at++) {
    int kind = ((int (*)(const void *))api[307])(all[at]);
    Status failed;
    if (kind != 0) continue; /* not a CPU */
    failed = ((Status (*)(Factory *, const void *, const void *, const void *, void **))ep_api[0])(
        self, all[at], NULL, NULL, &found[*number]);
    if (failed) return failed;
    (*number)++;
  }
  return NULL;
}
static Status create_ep(Factory *self, const void *const *devices, const void *const *metadata, size_t count,
                        const void *options, const void *logger, Ep **made) {
  (void)self; (void)devices; (void)metadata; (void)count; (void)options; (void)logger;
  if (MODE == CREATE_FAILS) return error("the plugin has no licence");
  *made = &ep;
  return NULL;
}
static void release_ep(Factory *self, Ep *made) { (void)self; (void)made; }

static Factory factory = {VERSION, (const char *(*)(const Factory *))name, vendor, get_devices, create_ep,
                          release_ep, vendor_id, version, NULL, NULL, NULL, create_transfer, is_stream_aware, {0}};

Status CreateEpFactories(const char *registration, const ApiBase *base, const void *logger, Factory **factories,
                         size_t most, size_t *number) {
  (void)registration; (void)logger; (void)most;
  api = base->get_api(VERSION);
  ep_api = ((Table (*)(void))api[317])();
  if (MODE == STATUS) return error("the plugin wants another driver");
  factories[0] = &factory;
  *number = 1;
  return NULL;
}

Status ReleaseEpFactory(Factory *self) { (void)self; return NULL; }
