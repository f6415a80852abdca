/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ROUTER_ALONE_H
#define ROUTER_ALONE_H

uint64_t alone_count(void);

#endif
