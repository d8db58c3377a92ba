/*
 * arrays.c - the wrappers of arrays and mipmapped arrays. Their sizes are those that their descriptors come to; what
 * the driver pads them with is not known. Sparse ones, and those to be mapped later, have no memory of their own.
 */
#include "hooks/cuda/wrap.h"

#define KEY(array) BSG_KEY(BSG_KIND_ARRAY, array)
#define WITHOUT_MEMORY (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

/* Bits of one element; 0: of a format that we do not know. */
static unsigned bits(CUarray_format format, unsigned channels) {
  switch ((int)format) {
  case CU_AD_FORMAT_UNSIGNED_INT8:
  case CU_AD_FORMAT_SIGNED_INT8:
    return 8 * channels;
  case CU_AD_FORMAT_UNSIGNED_INT16:
  case CU_AD_FORMAT_SIGNED_INT16:
  case CU_AD_FORMAT_HALF:
    return 16 * channels;
  case CU_AD_FORMAT_UNSIGNED_INT32:
  case CU_AD_FORMAT_SIGNED_INT32:
  case CU_AD_FORMAT_FLOAT:
    return 32 * channels;
  case CU_AD_FORMAT_NV12: /* two planes, the second of half the width and height */
    return 12;
  case CU_AD_FORMAT_UNORM_INT8X1:
  case CU_AD_FORMAT_SNORM_INT8X1:
    return 8;
  case CU_AD_FORMAT_UNORM_INT8X2:
  case CU_AD_FORMAT_SNORM_INT8X2:
  case CU_AD_FORMAT_UNORM_INT16X1:
  case CU_AD_FORMAT_SNORM_INT16X1:
    return 16;
  case CU_AD_FORMAT_UNORM_INT8X4:
  case CU_AD_FORMAT_SNORM_INT8X4:
  case CU_AD_FORMAT_UNORM_INT16X2:
  case CU_AD_FORMAT_SNORM_INT16X2:
    return 32;
  case CU_AD_FORMAT_UNORM_INT16X4:
  case CU_AD_FORMAT_SNORM_INT16X4:
    return 64;
  case CU_AD_FORMAT_BC1_UNORM: /* 4 x 4 elements in 8 bytes */
  case CU_AD_FORMAT_BC1_UNORM_SRGB:
  case CU_AD_FORMAT_BC4_UNORM:
  case CU_AD_FORMAT_BC4_SNORM:
    return 4;
  case CU_AD_FORMAT_BC2_UNORM:
  case CU_AD_FORMAT_BC2_UNORM_SRGB:
  case CU_AD_FORMAT_BC3_UNORM:
  case CU_AD_FORMAT_BC3_UNORM_SRGB:
  case CU_AD_FORMAT_BC5_UNORM:
  case CU_AD_FORMAT_BC5_SNORM:
  case CU_AD_FORMAT_BC6H_UF16:
  case CU_AD_FORMAT_BC6H_SF16:
  case CU_AD_FORMAT_BC7_UNORM:
  case CU_AD_FORMAT_BC7_UNORM_SRGB:
    return 8;
  default:
    return 0;
  }
}

static uint64_t size_of(uint64_t width, uint64_t height, uint64_t depth, CUarray_format format, unsigned channels) {
  return (width * (height ? height : 1) * (depth ? depth : 1) * bits(format, channels) + 7) / 8;
}

static uint64_t flat(const CUDA_ARRAY_DESCRIPTOR_v2 *array) {
  return array ? size_of(array->Width, array->Height, 0, array->Format, array->NumChannels) : 0;
}

static uint64_t flat_old(const CUDA_ARRAY_DESCRIPTOR_v1 *array) {
  return array ? size_of(array->Width, array->Height, 0, array->Format, array->NumChannels) : 0;
}

static uint64_t deep_old(const CUDA_ARRAY3D_DESCRIPTOR_v1 *array) {
  return array ? size_of(array->Width, array->Height, array->Depth, array->Format, array->NumChannels) : 0;
}

static uint64_t deep(const CUDA_ARRAY3D_DESCRIPTOR_v2 *array, unsigned levels) {
  uint64_t width, height, depth, bytes = 0;
  if (!array || array->Flags & WITHOUT_MEMORY)
    return 0;
  width = array->Width, height = array->Height, depth = array->Depth;
  for (unsigned level = 0; level < levels && level < 64; level++) {
    bytes += size_of(width, height, depth, array->Format, array->NumChannels);
    width = width > 1 ? width / 2 : width;
    height = height > 1 ? height / 2 : height;
    if (!(array->Flags & CUDA_ARRAY3D_LAYERED)) /* layers stay as many */
      depth = depth > 1 ? depth / 2 : depth;
  }
  return bytes;
}

#define CREATE(symbol, CALL, BYTES) BSG_ALLOCATE(symbol, CALL, BSG_KIND_ARRAY, BYTES, KEY(*array), call.request_bytes)

BSG_EXPORT CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor) {
  CREATE(cuArrayCreate, (array, descriptor), flat_old(descriptor));
}

BSG_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v2 *descriptor) {
  CREATE(cuArrayCreate_v2, (array, descriptor), flat(descriptor));
}

BSG_EXPORT CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor) {
  CREATE(cuArray3DCreate, (array, descriptor), deep_old(descriptor));
}

BSG_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor) {
  CREATE(cuArray3DCreate_v2, (array, descriptor), deep(descriptor, 1));
}

BSG_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor,
                                           unsigned int levels) {
  CREATE(cuMipmappedArrayCreate, (array, descriptor, levels), deep(descriptor, levels));
}

BSG_EXPORT CUresult cuArrayDestroy(CUarray array) {
  BSG_FREE(cuArrayDestroy, (array), array ? KEY(array) : 0);
}

BSG_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  BSG_FREE(cuMipmappedArrayDestroy, (array), array ? KEY(array) : 0);
}
