/* The stand-in's cuBLASLt: it has no algorithm for anything, so that the provider turns to cuBLAS. */
#include <stdlib.h>

#include "standin.h"

enum { SUCCESS = 0, NOT_SUPPORTED = 15 };

#define MAKES(name) \
  int name(void **made) { \
    *made = calloc(1, 64); \
    return SUCCESS; \
  }

MAKES(cublasLtCreate)
MAKES(cublasLtMatmulDescCreate)
MAKES(cublasLtMatmulPreferenceCreate)
MAKES(cublasLtMatrixLayoutCreate)
MAKES(cublasLtMatrixTransformDescCreate)

#define FREES(name) \
  int name(void *made) { \
    free(made); \
    return SUCCESS; \
  }

FREES(cublasLtDestroy)
FREES(cublasLtMatmulDescDestroy)
FREES(cublasLtMatmulPreferenceDestroy)
FREES(cublasLtMatrixLayoutDestroy)
FREES(cublasLtMatrixTransformDescDestroy)

#define SETS(name) \
  int name(void) { return SUCCESS; }

SETS(cublasLtMatmulDescSetAttribute)
SETS(cublasLtMatmulPreferenceSetAttribute)
SETS(cublasLtMatrixLayoutSetAttribute)

#define LACKS(name) \
  int name(void) { \
    standin_log("%s", #name); \
    return NOT_SUPPORTED; \
  }

LACKS(cublasLtMatmul)
LACKS(cublasLtMatmulAlgoConfigSetAttribute)
LACKS(cublasLtMatmulAlgoInit)
LACKS(cublasLtMatrixTransform)

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, void *results, int *found) {
  (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference, (void)wanted, (void)results;
  *found = 0;
  return NOT_SUPPORTED;
}
