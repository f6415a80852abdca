/* SPDX-License-Identifier: Apache-2.0 */

/*
 * prompt_root: the name that every prefix of a prompt depends on: a digest of whatever may change
 * the prompt from its first byte on. Which members of a body that is, and which not, see
 * prompt_root.c. Pure; any thread.
 */
#ifndef ROUTER_PROMPT_PROMPT_ROOT_H
#define ROUTER_PROMPT_PROMPT_ROOT_H

#include <stdint.h>

#include "router/api/api_request.h"

/* secret: DIGEST_SECRET_BYTES. */
uint64_t prompt_root(const uint8_t *secret, const struct api_request *request);

#endif
