/* SPDX-License-Identifier: Apache-2.0 */

#include <stdio.h>

#include "router/cli/command.h"

int command_version(int argc, const char *const *argv)
{
    (void)argv;
    if (argc > 1) {
        fputs("samovar version: takes no argument\n", stderr);
        return EXIT_CODE_USAGE;
    }
    puts("samovar " SAMOVAR_VERSION);
    return EXIT_CODE_OK;
}
