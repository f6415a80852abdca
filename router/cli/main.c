/* SPDX-License-Identifier: Apache-2.0 */

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/near_name.h"
#include "router/cli/command.h"
#include "router/policy/policy.h"

static const struct {
    const char *name;
    const char *help;
    command_fn *run;
} commands[] = {
    {"check", "read a configuration as the router would, and say all that is wrong", command_check},
    {"doctor", "try all that a router needs, and say in plain sentences what is wrong",
     command_doctor},
    {"explain", "show how prompts are cut into blocks, and which worker they would go to",
     command_explain},
    {"man", "print the man page of samovar-router, made of its table of options", command_man},
    {"show", "show what a running router knows of its workers", command_show},
    {"version", "print the version", command_version},
};

static void print_help(FILE *file)
{
    fputs("Usage: samovar COMMAND [ARGUMENT ...]\n\nCommands:\n", file);
    for (size_t i = 0; i < array_count(commands); i++)
        fprintf(file, "  %-10s%s\n", commands[i].name, commands[i].help);
    fputs("\n`samovar COMMAND --help` says more. The router itself is samovar-router.\n", file);
}

static int refuse(const char *name)
{
    const char *nearest = NULL;
    size_t nearest_cost = NEAR_NAME_FAR;

    for (size_t i = 0; i < array_count(commands); i++) {
        size_t cost = near_name_cost(slice_of_string(name), slice_of_string(commands[i].name));

        if (cost < nearest_cost) {
            nearest = commands[i].name;
            nearest_cost = cost;
        }
    }
    fprintf(stderr, "samovar: there is no command \"%s\"", name);
    if (nearest != NULL)
        fprintf(stderr, "; did you mean %s?\n", nearest);
    else
        fputs("; `samovar --help` lists them\n", stderr);
    return EXIT_CODE_USAGE;
}

int command_print(const struct buf *text)
{
    struct slice bytes = buf_slice(text);
    bool is_written = bytes.len == 0 || fwrite(bytes.ptr, 1, bytes.len, stdout) == bytes.len;

    return is_written && fflush(stdout) == 0 ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return EXIT_CODE_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return EXIT_CODE_OK;
    }
    if (strcmp(argv[1], "--version") == 0)
        argv[1] += 2;
    for (size_t i = 0; i < array_count(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, (const char *const *)argv + 1);
    return refuse(argv[1]);
}
