/* SPDX-License-Identifier: Apache-2.0 */

/*
 * api_fault: why a request's body cannot be meant as it is: what a 400 says. Whoever reads bodies
 * fills it; the form in which an API writes it is api_error's. Pure; any thread.
 */
#ifndef ROUTER_API_API_FAULT_H
#define ROUTER_API_API_FAULT_H

struct api_fault {
    const char *code;  /* "invalid_json", "invalid_type", "missing_field", ... */
    char param[64];    /* the field, or "" */
    char message[256]; /* says what is wrong, where, and what to do; never the input's own text */
};

#endif
