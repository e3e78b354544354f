/* The stand-in's driver library: there, and of a known version. */
#include "standin.h"

int cuInit(unsigned flags) {
  (void)flags;
  return 0;
}

int cuDriverGetVersion(int *version) {
  *version = STANDIN_CUDA_VERSION;
  return 0;
}

int cuTensorMapEncodeTiled(void) { return 801; /* CUDA_ERROR_NOT_SUPPORTED */ }
