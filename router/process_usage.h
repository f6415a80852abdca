/* SPDX-License-Identifier: Apache-2.0 */

/*
 * process_usage: what the kernel says of this process, read at a scrape. Loop thread only.
 */
#ifndef ROUTER_PROCESS_USAGE_H
#define ROUTER_PROCESS_USAGE_H

/* NAN where /proc does not say. */
struct process_usage {
    double resident_bytes;
    double fds;
    double fds_max;
    double cpu_seconds;
    double start_seconds; /* since 1970 */
};

void process_usage_read(struct process_usage *usage);

#endif
