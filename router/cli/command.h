/* SPDX-License-Identifier: Apache-2.0 */

/*
 * command: one subcommand of `samovar`. Each has a file of its own and one row in main.c; they
 * share this, and router_words where they read what the router reads. Each returns an exit_code.
 */
#ifndef ROUTER_CLI_COMMAND_H
#define ROUTER_CLI_COMMAND_H

#include <stddef.h>

#include "backends/runtime/buf.h"
#include "router/options.h"

/* argv[0] is the command's own name; argc counts it. */
typedef int command_fn(int argc, const char *const *argv);

command_fn command_check;
command_fn command_doctor;
command_fn command_explain;
command_fn command_man;
command_fn command_show;
command_fn command_version;

/* Writes all of text to standard output. An exit code. */
int command_print(const struct buf *text);

#endif
