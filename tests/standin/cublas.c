/* The stand-in's cuBLAS: fp32 GEMMs and the little around them are computed, the rest is logged only.
 *
 * Matrices are stored by columns, as in the real one. Types are written out instead of included: cuBLAS's
 * own headers come in a package of their own that is needed for nothing else.
 */
#include <stdlib.h>

#include "standin.h"

enum { SUCCESS = 0, EXECUTION_FAILED = 13 };
enum { FP32 = 0 }; /* CUDA_R_32F */

struct handle {
  void *stream;
  int math_mode;
};

static int begin(const char *name, const struct handle *handle) {
  standin_log("%s stream=%p mathmode=%d", name, handle->stream, handle->math_mode);
  return standin_enter(name);
}

#define BEGIN(handle) \
  do { \
    int fault_ = begin(__func__, handle); \
    if (fault_) return fault_; \
  } while (0)

static int queue(const struct handle *handle, standin_work work, const void *arguments, size_t size) {
  return standin_kernel(handle->stream, work, arguments, size) ? EXECUTION_FAILED : SUCCESS;
}

/* --- handles ---------------------------------------------------------------------------------------- */

int cublasCreate_v2(struct handle **handle) {
  int fault = standin_enter(__func__);
  if (fault) return fault;
  *handle = calloc(1, sizeof **handle);
  return SUCCESS;
}

int cublasDestroy_v2(struct handle *handle) {
  free(handle);
  return SUCCESS;
}

int cublasSetStream_v2(struct handle *handle, void *stream) {
  handle->stream = stream;
  return SUCCESS;
}

int cublasSetMathMode(struct handle *handle, int mode) {
  handle->math_mode = mode;
  return SUCCESS;
}

int cublasGetMathMode(struct handle *handle, int *mode) {
  *mode = handle->math_mode;
  return SUCCESS;
}

const char *cublasGetStatusName(int status) {
  switch (status) {
    case 0: return "CUBLAS_STATUS_SUCCESS";
    case 1: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3: return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7: return "CUBLAS_STATUS_INVALID_VALUE";
    case 11: return "CUBLAS_STATUS_MAPPING_ERROR";
    case 13: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 14: return "CUBLAS_STATUS_INTERNAL_ERROR";
    default: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
}

const char *cublasGetStatusString(int status) { return cublasGetStatusName(status); }

/* --- products: C = alpha op(A) op(B) + beta C --------------------------------------------------------- */

struct product {
  int transposed_a, transposed_b, m, n, k;
  float alpha, beta;
  const float *a, *b;
  float *c;
  long row_a, row_b, row_c; /* leading dimensions */
  long long step_a, step_b, step_c;
  const float *const *list_a, *const *list_b; /* instead of steps: one pointer for each product */
  float *const *list_c;
  int count;
};

static void multiply(const struct product *p, const float *a, const float *b, float *c) {
  for (long column = 0; column < p->n; column++)
    for (long row = 0; row < p->m; row++) {
      double sum = 0;
      for (long i = 0; i < p->k; i++)
        sum += (double)(p->transposed_a ? a[i + row * p->row_a] : a[row + i * p->row_a]) *
               (p->transposed_b ? b[column + i * p->row_b] : b[i + column * p->row_b]);
      float *out = &c[row + column * p->row_c];
      *out = p->alpha * (float)sum + (p->beta != 0 ? p->beta * *out : 0); /* with beta 0, C may hold anything */
    }
}

static void do_product(void *arguments) {
  const struct product *p = arguments;
  for (int i = 0; i < p->count; i++)
    if (p->list_a)
      multiply(p, p->list_a[i], p->list_b[i], p->list_c[i]);
    else
      multiply(p, p->a + i * p->step_a, p->b + i * p->step_b, p->c + i * p->step_c);
}

int cublasSgemmStridedBatched(struct handle *handle, int ta, int tb, int m, int n, int k, const float *alpha,
                              const float *a, int lda, long long sa, const float *b, int ldb, long long sb,
                              const float *beta, float *c, int ldc, long long sc, int count) {
  BEGIN(handle);
  struct product product = {ta, tb, m, n, k, *alpha, *beta, a, b, c, lda, ldb, ldc, sa, sb, sc, NULL, NULL, NULL, count};
  return queue(handle, do_product, &product, sizeof product);
}

int cublasSgemm_v2(struct handle *handle, int ta, int tb, int m, int n, int k, const float *alpha, const float *a,
                   int lda, const float *b, int ldb, const float *beta, float *c, int ldc) {
  BEGIN(handle);
  struct product product = {ta, tb, m, n, k, *alpha, *beta, a, b, c, lda, ldb, ldc, 0, 0, 0, NULL, NULL, NULL, 1};
  return queue(handle, do_product, &product, sizeof product);
}

int cublasSgemmBatched(struct handle *handle, int ta, int tb, int m, int n, int k, const float *alpha,
                       const float *const *a, int lda, const float *const *b, int ldb, const float *beta,
                       float *const *c, int ldc, int count) {
  BEGIN(handle);
  struct product product = {ta, tb, m, n, k, *alpha, *beta, NULL, NULL, NULL, lda, ldb, ldc, 0, 0, 0, a, b, c, count};
  return queue(handle, do_product, &product, sizeof product);
}

/* Other types do nothing, like any kernel that isn't computed. */
static int product_of_any_type(struct handle *handle, int ta, int tb, int m, int n, int k, const void *alpha,
                               const void *a, int type_a, int lda, long long sa, const void *b, int type_b, int ldb,
                               long long sb, const void *beta, void *c, int type_c, int ldc, long long sc, int count) {
  if (type_a != FP32 || type_b != FP32 || type_c != FP32) return queue(handle, NULL, NULL, 0);
  struct product product = {ta,  tb,  m,   n,  k,  *(const float *)alpha, *(const float *)beta, a, b, c, lda,
                            ldb, ldc, sa, sb, sc, NULL, NULL, NULL, count};
  return queue(handle, do_product, &product, sizeof product);
}

int cublasGemmEx(struct handle *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                 int type_a, int lda, const void *b, int type_b, int ldb, const void *beta, void *c, int type_c,
                 int ldc, int compute, int algorithm) {
  (void)compute, (void)algorithm;
  BEGIN(handle);
  return product_of_any_type(handle, ta, tb, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c, type_c,
                             ldc, 0, 1);
}

int cublasGemmStridedBatchedEx(struct handle *handle, int ta, int tb, int m, int n, int k, const void *alpha,
                               const void *a, int type_a, int lda, long long sa, const void *b, int type_b, int ldb,
                               long long sb, const void *beta, void *c, int type_c, int ldc, long long sc, int count,
                               int compute, int algorithm) {
  (void)compute, (void)algorithm;
  BEGIN(handle);
  return product_of_any_type(handle, ta, tb, m, n, k, alpha, a, type_a, lda, sa, b, type_b, ldb, sb, beta, c, type_c,
                             ldc, sc, count);
}

/* --- vectors and sums -------------------------------------------------------------------------------- */

struct vectors {
  int count, step_x, step_y;
  float factor;
  const float *x;
  float *y;
};

static void do_copy(void *arguments) {
  const struct vectors *v = arguments;
  for (long i = 0; i < v->count; i++) v->y[i * v->step_y] = v->factor * v->x[i * v->step_x];
}

int cublasScopy_v2(struct handle *handle, int count, const float *x, int step_x, float *y, int step_y) {
  BEGIN(handle);
  struct vectors vectors = {count, step_x, step_y, 1, x, y};
  return queue(handle, do_copy, &vectors, sizeof vectors);
}

int cublasSscal_v2(struct handle *handle, int count, const float *factor, float *x, int step) {
  BEGIN(handle);
  struct vectors vectors = {count, step, step, *factor, x, x};
  return queue(handle, do_copy, &vectors, sizeof vectors);
}

static void do_sum(void *arguments) {
  const struct product *p = arguments;
  for (long column = 0; column < p->n; column++)
    for (long row = 0; row < p->m; row++) {
      float sum = p->alpha * (p->transposed_a ? p->a[column + row * p->row_a] : p->a[row + column * p->row_a]);
      if (p->beta != 0)
        sum += p->beta * (p->transposed_b ? p->b[column + row * p->row_b] : p->b[row + column * p->row_b]);
      p->c[row + column * p->row_c] = sum;
    }
}

/* C = alpha op(A) + beta op(B); with which a matrix is transposed. */
int cublasSgeam(struct handle *handle, int ta, int tb, int m, int n, const float *alpha, const float *a, int lda,
                const float *beta, const float *b, int ldb, float *c, int ldc) {
  BEGIN(handle);
  struct product sum = {ta, tb, m, n, 0, *alpha, *beta, a, b, c, lda, ldb, ldc, 0, 0, 0, NULL, NULL, NULL, 1};
  return queue(handle, do_sum, &sum, sizeof sum);
}

/* --- what is not computed ----------------------------------------------------------------------------- */

#define NOTHING(name) \
  int name(struct handle *handle) { \
    BEGIN(handle); \
    return queue(handle, NULL, NULL, 0); \
  }

NOTHING(cublasDgeam)
NOTHING(cublasDgemmBatched)
NOTHING(cublasDgemmStridedBatched)
NOTHING(cublasDgemm_v2)
NOTHING(cublasDgetrfBatched)
NOTHING(cublasDgetriBatched)
NOTHING(cublasGemmBatchedEx)
NOTHING(cublasSgetrfBatched)
NOTHING(cublasSgetriBatched)
