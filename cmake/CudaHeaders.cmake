# Finds cuda.h and cudaTypedefs.h: types only, nothing of CUDA is linked.
# Order: BSG_CUDA_INCLUDE, the pinned wheel in .venv (scripts/setup) or beside the Python that builds a wheel of ours, an
# installed toolkit.
if(NOT BSG_CUDA_INCLUDE)
  file(GLOB _bsg_wheel "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cuda_runtime/include")
  if(SKBUILD)
    execute_process(
      COMMAND ${Python_EXECUTABLE} -c "import nvidia.cuda_runtime as wheel; print(list(wheel.__path__)[0] + '/include')"
      OUTPUT_VARIABLE _bsg_wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  find_path(_bsg_cuda_dir cudaTypedefs.h
    PATHS ${_bsg_wheel} /usr/local/cuda/include /usr/include /opt/cuda/include NO_DEFAULT_PATH NO_CACHE)
  if(NOT _bsg_cuda_dir)
    message(FATAL_ERROR "cuda.h and cudaTypedefs.h were not found: run scripts/setup, or set -DBSG_CUDA_INCLUDE=FOLDER")
  endif()
  set(BSG_CUDA_INCLUDE "${_bsg_cuda_dir}")
endif()
message(STATUS "CUDA headers: ${BSG_CUDA_INCLUDE}")
add_library(bsg_cuda_headers INTERFACE)
target_include_directories(bsg_cuda_headers SYSTEM INTERFACE ${BSG_CUDA_INCLUDE})
