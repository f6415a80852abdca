# SPDX-License-Identifier: Apache-2.0
# The system libraries, each as one imported target. Nothing is vendored.

find_package(PkgConfig REQUIRED)
pkg_check_modules(libuv REQUIRED IMPORTED_TARGET libuv)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(yaml REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(simdjson REQUIRED IMPORTED_TARGET simdjson)
pkg_check_modules(zmq REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(hiredis REQUIRED IMPORTED_TARGET hiredis)
pkg_check_modules(uring REQUIRED IMPORTED_TARGET liburing)

# llhttp: Debian 13 has a library (libllhttp-dev), Debian 12 only the C sources (node-llhttp).
find_path(LLHTTP_INCLUDE llhttp.h PATHS /usr/share/include/llhttp PATH_SUFFIXES llhttp)
find_library(LLHTTP_LIBRARY llhttp)
if(LLHTTP_INCLUDE AND LLHTTP_LIBRARY)
    add_library(samovar_llhttp INTERFACE)
    target_link_libraries(samovar_llhttp INTERFACE ${LLHTTP_LIBRARY})
    target_include_directories(samovar_llhttp SYSTEM INTERFACE ${LLHTTP_INCLUDE})
elseif(LLHTTP_INCLUDE AND EXISTS /usr/share/llhttp/llhttp.c)
    add_library(samovar_llhttp STATIC /usr/share/llhttp/api.c /usr/share/llhttp/http.c
                                      /usr/share/llhttp/llhttp.c)
    target_include_directories(samovar_llhttp SYSTEM PUBLIC ${LLHTTP_INCLUDE})
    target_compile_definitions(samovar_llhttp PUBLIC LLHTTP_STRICT_MODE=1)
    target_compile_options(samovar_llhttp PRIVATE -w)
else()
    message(FATAL_ERROR "llhttp not found: apt-get install libllhttp-dev (Debian 13) or "
                        "node-llhttp (Debian 12)")
endif()
