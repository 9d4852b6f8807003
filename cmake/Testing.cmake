# *_test.cpp beside the sources: one test program a layer. tests/*_test.cpp: one program each.
#
# A test's label follows from its suite's name, so that writing the test is all there is to do:
#   *Slow*       slow         not in the default run (./dev test slow)
#   *RealModel*  heavy_model  needs the downloaded model; runs alone, not under sanitizers
#   *Heavy*      heavy        runs alone: many threads or much memory
#   the others   unit         from src/<layer>, or `scenario` from tests/
find_package(GTest REQUIRED)
find_package(Python3 COMPONENTS Interpreter)
include(GoogleTest)

function(qevict_discover_tests target label)
  set(slow "*Slow*.*")
  set(model "*RealModel*.*")
  set(heavy "*Heavy*.*")
  string(REGEX REPLACE "_test$" "" prefix ${target})
  set(common TEST_PREFIX "${prefix}." DISCOVERY_TIMEOUT 120 DISCOVERY_MODE PRE_TEST)
  gtest_discover_tests(${target} ${common} TEST_FILTER "-${slow}:${model}:${heavy}"
                       TEST_LIST ${target}_TESTS PROPERTIES LABELS ${label})
  gtest_discover_tests(${target} ${common} TEST_FILTER "${slow}"
                       TEST_LIST ${target}_SLOW PROPERTIES LABELS slow)
  gtest_discover_tests(${target} ${common} TEST_FILTER "${model}-${slow}"
                       TEST_LIST ${target}_MODEL PROPERTIES LABELS heavy_model)
  gtest_discover_tests(${target} ${common} TEST_FILTER "${heavy}-${slow}:${model}"
                       TEST_LIST ${target}_HEAVY PROPERTIES LABELS heavy)
endfunction()

# Small random-weight models (tests/gguf_writer.h), for every test that wants one.
add_library(qevict_test_models STATIC ${CMAKE_CURRENT_SOURCE_DIR}/tests/gguf_writer.cpp)
target_include_directories(qevict_test_models PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/tests)
target_link_libraries(qevict_test_models PUBLIC qevict_flags llama qevict_ggml)

foreach(layer base kernels kv policies attention model engine eval cli)
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/${layer}/*_test.cpp
                                    ${CMAKE_CURRENT_SOURCE_DIR}/src/${layer}/tasks/*_test.cpp)
  if(tests)
    add_executable(${layer}_test ${tests})
    set(library qevict_${layer})
    if(layer STREQUAL "cli")
      set(library qevict_engine)
    endif()
    target_link_libraries(${layer}_test PRIVATE ${library} qevict_policies GTest::gtest_main)
    if(layer MATCHES "model|engine|eval|cli")
      target_link_libraries(${layer}_test PRIVATE qevict_test_models)
    endif()
    if(QEVICT_SANITIZE STREQUAL "thread")
      # Some tests count allocations with an operator new of their own, as the sanitizer has one.
      target_link_options(${layer}_test PRIVATE -Wl,--allow-multiple-definition)
    endif()
    qevict_discover_tests(${layer}_test unit)
  endif()
endforeach()

file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/*_test.cpp)
foreach(test ${tests})
  get_filename_component(name ${test} NAME_WE)
  add_executable(${name} ${test})
  target_link_libraries(${name} PRIVATE qevict_eval qevict_test_models
                                        nlohmann_json::nlohmann_json GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE QEVICT_BIN_DIR="${CMAKE_BINARY_DIR}/bin")
  if(name MATCHES "^cli_" AND TARGET qevict)
    add_dependencies(${name} qevict)
  endif()
  qevict_discover_tests(${name} scenario)
endforeach()

if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/tests/vectors_check.cpp)
  file(GLOB vector_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tests/vectors_*.cpp)
  add_executable(vectors_check ${vector_sources})
  target_link_libraries(vectors_check PRIVATE qevict_eval nlohmann_json::nlohmann_json)
endif()

if(Python3_FOUND)
  foreach(check layers size)
    add_test(NAME tools.check_${check}
             COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tools/check_${check}.py)
    set_tests_properties(tools.check_${check} PROPERTIES LABELS unit)
  endforeach()
endif()
