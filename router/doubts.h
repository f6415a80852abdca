/* SPDX-License-Identifier: Apache-2.0 */

/*
 * doubts: values of options that are legal, each and together, and yet most likely a mistake. Said
 * at the start, at each reload and by `samovar check`; they stop nothing. Pure.
 */
#ifndef ROUTER_DOUBTS_H
#define ROUTER_DOUBTS_H

#include <stddef.h>

#include "backends/runtime/machine.h"
#include "router/options.h"

struct doubt {
    const char *option; /* that one would change */
    const char *why;    /* what happens, or does not */
    const char *advice;
};

enum { DOUBT_COUNT_MAX = 32 };

/* The doubts about these options on that machine, in order of the options' names. Returns how many.
 * The texts are constants. */
size_t doubts_find(const struct router_options *options, const struct machine *machine,
                   const struct doubt *doubts[DOUBT_COUNT_MAX]);

#endif
