# SPDX-License-Identifier: Apache-2.0

# gather_ptx(input output): a C file with the text of the kernel, each line a literal, made when
# CMake runs. The compiler of C then needs no way to include a file as bytes.
function(gather_ptx input output)
    file(STRINGS ${input} lines)
    set(text "")
    foreach(line IN LISTS lines)
        string(REPLACE "\\" "\\\\" line "${line}")
        string(REPLACE "\"" "\\\"" line "${line}")
        string(APPEND text "    \"${line}\\n\"\n")
    endforeach()
    set(content "/* Made of gather.ptx. */\n#include \"kvtier/device/gather.h\"\n\n")
    string(APPEND content "const char gather_ptx[] =\n${text}    \"\";\n")
    file(CONFIGURE OUTPUT ${output} CONTENT "${content}" @ONLY)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${input})
endfunction()
