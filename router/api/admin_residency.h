/* SPDX-License-Identifier: Apache-2.0 */

/* admin_residency: GET /residency of the admin listener: who is believed about what, and why not.
 */
#ifndef ROUTER_API_ADMIN_RESIDENCY_H
#define ROUTER_API_ADMIN_RESIDENCY_H

#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"

struct relay;

/* Appends the answer, JSON. -ENOBUFS, -ENOMEM. */
MUST_CHECK int admin_write_residency(struct buf *body, const struct relay *relay);

#endif
