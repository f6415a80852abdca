/* SPDX-License-Identifier: Apache-2.0 */

/* exit_code: how our programs end. */
#ifndef BACKENDS_RUNTIME_EXIT_CODE_H
#define BACKENDS_RUNTIME_EXIT_CODE_H

enum exit_code {
    EXIT_CODE_OK = 0,
    EXIT_CODE_FAILED = 1, /* at run time */
    EXIT_CODE_USAGE = 2,  /* flags */
    EXIT_CODE_CONFIG = 3, /* file or environment */
    EXIT_CODE_BIND = 4,   /* an address cannot be listened on */
};

#endif
