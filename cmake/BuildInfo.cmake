# cli/build_info.h: version, commit, compiler, for `qevict --version`. The commit is that of the last
# configuration; a new commit configures again.
find_package(Git QUIET)
set(QEVICT_COMMIT "unknown commit")
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${CMAKE_CURRENT_SOURCE_DIR} describe --always --dirty
                          --tags --abbrev=12
                  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                  RESULT_VARIABLE failed)
  if(NOT failed)
    set(QEVICT_COMMIT ${found})
  endif()
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${CMAKE_CURRENT_SOURCE_DIR} rev-parse --git-path
                          logs/HEAD
                  OUTPUT_VARIABLE head_log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                  RESULT_VARIABLE failed)
  if(NOT failed AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${head_log})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
                                           ${CMAKE_CURRENT_SOURCE_DIR}/${head_log})
  endif()
endif()
configure_file(${CMAKE_CURRENT_SOURCE_DIR}/src/cli/build_info.h.in
               ${CMAKE_BINARY_DIR}/generated/cli/build_info.h @ONLY)
