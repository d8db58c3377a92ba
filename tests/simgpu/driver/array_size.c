/*
 * array_size.c - how many bytes an array of a description has: those of its elements, without padding. A real driver
 * pads rows and tiles, by rules that it does not publish. Figures only.
 */
#include "internal.h"

/* Bytes of a block of side x side elements; 0 for an unknown format. */
static unsigned block_bytes(CUarray_format format, unsigned channels, unsigned *side) {
  *side = 1;
  switch (format) {
  case CU_AD_FORMAT_UNSIGNED_INT8:
  case CU_AD_FORMAT_SIGNED_INT8:
    return channels;
  case CU_AD_FORMAT_UNSIGNED_INT16:
  case CU_AD_FORMAT_SIGNED_INT16:
  case CU_AD_FORMAT_HALF:
    return 2 * channels;
  case CU_AD_FORMAT_UNSIGNED_INT32:
  case CU_AD_FORMAT_SIGNED_INT32:
  case CU_AD_FORMAT_FLOAT:
    return 4 * channels;
  case CU_AD_FORMAT_BC1_UNORM:
  case CU_AD_FORMAT_BC1_UNORM_SRGB:
  case CU_AD_FORMAT_BC4_UNORM:
  case CU_AD_FORMAT_BC4_SNORM:
    *side = 4;
    return 8;
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
    *side = 4;
    return 16;
  default:
    return 0;
  }
}

static uint64_t at_least_1(uint64_t value) {
  return value ? value : 1;
}

bool sim_array_level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned level, uint64_t *out) {
  bool layered = desc->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  uint64_t width = at_least_1(desc->Width >> level), height = at_least_1(desc->Height >> level);
  uint64_t depth = at_least_1(layered ? desc->Depth : desc->Depth >> level);
  unsigned side, bytes = block_bytes(desc->Format, desc->NumChannels, &side);
  if (!desc->Width || (desc->NumChannels != 1 && desc->NumChannels != 2 && desc->NumChannels != 4) || !bytes)
    return false;
  width = width / side + (width % side != 0);
  height = height / side + (height % side != 0);
  return !__builtin_mul_overflow(width, height, out) && !__builtin_mul_overflow(*out, depth, out) &&
         !__builtin_mul_overflow(*out, (uint64_t)bytes, out);
}

bool sim_array_mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels, uint64_t *out) {
  uint64_t bytes;
  *out = 0;
  for (unsigned level = 0; level < levels; level++) {
    if (!sim_array_level_bytes(desc, level, &bytes) || __builtin_add_overflow(*out, bytes, out))
      return false;
  }
  return true;
}
