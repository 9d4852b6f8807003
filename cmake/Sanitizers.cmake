# QEVICT_SANITIZE: empty, "address" (address + undefined) or "thread".
set(QEVICT_SANITIZE "" CACHE STRING "address or thread")
set(QEVICT_SANITIZE_FLAGS)
if(QEVICT_SANITIZE STREQUAL "address")
  set(QEVICT_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=undefined
                            -fno-omit-frame-pointer)
elseif(QEVICT_SANITIZE STREQUAL "thread")
  set(QEVICT_SANITIZE_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
elseif(QEVICT_SANITIZE)
  message(FATAL_ERROR "QEVICT_SANITIZE must be empty, address or thread")
endif()
