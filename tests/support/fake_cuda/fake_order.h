/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fake_order: what is ordered before what, and faults of order. Each stream counts its operations;
 * to know an operation is to be ordered behind it. A stream knows its own past, what the host knew
 * when it enqueued, and what an event knew that it waits for. The host (all its threads are one)
 * knows what it has waited for. So order does not depend on when things happen to run.
 */
#ifndef TESTS_SUPPORT_FAKE_CUDA_FAKE_ORDER_H
#define TESTS_SUPPORT_FAKE_CUDA_FAKE_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_STREAMS_MAX = 64, FAKE_FAULT_BYTES = 256 };

struct fake_known {
    uint64_t counts[FAKE_STREAMS_MAX]; /* of each stream, up to which operation */
};

/* An operation: the count-th of its stream. */
struct fake_moment {
    uint32_t stream;
    uint64_t count;
};

void fake_known_add(struct fake_known *known, const struct fake_known *more);

/* What the operation at moment, which knows that much, does to bytes: checked against all that was
 * done before, and remembered. what: for the sentence, a literal. */
void fake_order_access(struct fake_moment moment, const struct fake_known *known, uint64_t address,
                       size_t len, bool is_written, const char *what);
/* Whether something that the host does not know to have ended touches bytes. */
bool fake_order_is_used(const struct fake_known *host, uint64_t address, size_t len);
/* What the host knows needs no remembering: everything that comes knows it too. */
void fake_order_forget(const struct fake_known *host);
void fake_order_reset(void);

/* Aborts with the sentence, or keeps it. */
void fake_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
void fake_fault_keep(bool is_kept);
const char *fake_fault_kept(void);

#endif
