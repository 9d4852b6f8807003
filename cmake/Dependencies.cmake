# Every library comes from the system or its publisher; nothing is vendored.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(hwy CONFIG QUIET)
if(NOT TARGET hwy::hwy)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
  add_library(hwy::hwy ALIAS PkgConfig::hwy)
endif()

# llama.cpp (libllama, ggml): an installed tree (./dev builds one), a source tree, or its publisher.
set(QEVICT_LLAMA_COMMIT 0c1e57098bba43ac29e6e3b677cdceebdd22334f)
set(QEVICT_LLAMA_DIR "" CACHE PATH "llama.cpp source tree (commit ${QEVICT_LLAMA_COMMIT})")

# A function, so that what llama.cpp is built with does not leak into the project.
function(qevict_build_llama)
  set(CMAKE_CXX_STANDARD 17)
  set(CMAKE_CXX_EXTENSIONS ON)
  set(CMAKE_EXPORT_COMPILE_COMMANDS OFF)
  set(BUILD_SHARED_LIBS OFF)
  set(GGML_OPENMP OFF)
  set(GGML_NATIVE ${QEVICT_NATIVE})
  foreach(part TESTS EXAMPLES SERVER TOOLS COMMON APP)
    set(LLAMA_BUILD_${part} OFF)
  endforeach()
  if(QEVICT_SANITIZE STREQUAL "thread")
    # Thread sanitizer must see ggml's barriers too, or it reports races that are none.
    set(LLAMA_SANITIZE_THREAD ON)
    set(GGML_SANITIZE_THREAD ON)
  endif()
  if(QEVICT_LLAMA_DIR)
    add_subdirectory(${QEVICT_LLAMA_DIR} ${CMAKE_BINARY_DIR}/llama.cpp EXCLUDE_FROM_ALL)
  else()
    include(FetchContent)
    FetchContent_Declare(llama_cpp GIT_REPOSITORY https://github.com/ggml-org/llama.cpp
                                   GIT_TAG ${QEVICT_LLAMA_COMMIT})
    FetchContent_MakeAvailable(llama_cpp)
  endif()
endfunction()

if(NOT QEVICT_LLAMA_DIR)
  find_package(llama CONFIG QUIET)
endif()
if(NOT llama_FOUND)
  qevict_build_llama()
endif()

# One name for ggml and its CPU backend: the installed package exports ggml::all (backends only),
# a source tree plain targets.
add_library(qevict_ggml INTERFACE)
if(TARGET ggml::all)
  target_link_libraries(qevict_ggml INTERFACE ggml::ggml ggml::all ggml::ggml-base)
else()
  target_link_libraries(qevict_ggml INTERFACE ggml ggml-cpu ggml-base)
endif()
target_link_libraries(qevict_ggml INTERFACE Threads::Threads)
