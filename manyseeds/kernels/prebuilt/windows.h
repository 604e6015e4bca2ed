// Included before each source that is compiled for Windows, whose C library has no aligned_alloc.
#pragma once
#include <malloc.h>
#include <stdlib.h>

#define aligned_alloc(alignment, size) _aligned_malloc(size, alignment)
#define free(memory) _aligned_free(memory)
