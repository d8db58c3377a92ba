# Cross-building for aarch64 (Grace, Jetson) with Debian's compiler: -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake. Programs run
# under qemu-user, where it is installed, so that ctest works.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-gcc) # nothing in this build is C++
set(CMAKE_CXX_COMPILER_FORCED TRUE)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
find_program(BSG_QEMU NAMES qemu-aarch64-static qemu-aarch64)
if(BSG_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${BSG_QEMU} -L /usr/aarch64-linux-gnu)
endif()
