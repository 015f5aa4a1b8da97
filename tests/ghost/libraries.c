/* cuBLAS, the driver, and entries of the runtime whose parameters differ between releases: only
 * what callers read of their answers. No header is included, and no parameter declared that is not
 * used, as the calling conventions of x86-64 and AArch64 allow. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

static int success(void)
{
    return 0;
}

static int give(void **handle)
{
    *handle = calloc(1, 64);
    return 0;
}

/* ---- the runtime */

const char *cudaGetErrorName(int error)
{
    return "ghost";
}

const char *cudaGetErrorString(int error)
{
    return "the ghost GPU cannot do this";
}

int cudaStreamGetCaptureInfo(void *stream, int *status)
{
    *status = 0; /* nothing is captured */
    return 0;
}

int cudaStreamGetCaptureInfo_v2(void *stream, int *status)
{
    *status = 0;
    return 0;
}

int cudaGetDriverEntryPoint(const char *name, void **entry, unsigned long flags, int *status)
{
    *entry = dlsym(RTLD_DEFAULT, name);
    if (!*entry)
        *entry = success;
    if (status)
        *status = 0;
    return 0;
}

int cudaGetDriverEntryPointByVersion(const char *name, void **entry, unsigned version,
                                     unsigned long flags, int *status)
{
    return cudaGetDriverEntryPoint(name, entry, flags, status);
}

int __cudaLaunchKernel(void)
{
    return 0;
}

int __cudaGetKernel(void **kernel, const void *function)
{
    *kernel = (void *)function;
    return 0;
}

/* ---- the driver */

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = 1;
    return 0;
}

int cuGetErrorString(int error, const char **text)
{
    *text = "ghost";
    return 0;
}

int cuCtxGetCurrent(void **context)
{
    *context = success; /* any will do */
    return 0;
}

/* ---- cuBLAS */

int cublasCreate_v2(void **handle)
{
    return give(handle);
}

int cublasLtCreate(void **handle)
{
    return give(handle);
}

int cublasGetVersion_v2(void *handle, int *version)
{
    *version = 130400;
    return 0;
}

int cublasGetMathMode(void *handle, int *mode)
{
    *mode = 0;
    return 0;
}

int cublasGetPointerMode_v2(void *handle, int *mode)
{
    *mode = 0;
    return 0;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *what, void *a, void *b, void *c, void *d,
                                   void *preference, int wanted, void *results, int *found)
{
    *found = 1; /* whose status is that of memory that was cleared: success */
    return 0;
}

const char *cublasGetStatusString(int status)
{
    return "ghost";
}
