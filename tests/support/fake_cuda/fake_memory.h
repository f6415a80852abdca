/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fake_memory: HBM and pinned memory of the fake. Addresses are the machine's own. HBM lies in
 * memfds, so that another process can map it by a handle. The caller holds the fake's lock.
 */
#ifndef TESTS_SUPPORT_FAKE_CUDA_FAKE_MEMORY_H
#define TESTS_SUPPORT_FAKE_CUDA_FAKE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fake_kind { FAKE_HBM, FAKE_IMPORTED, FAKE_PINNED, FAKE_REGISTERED };

struct fake_memory {
    struct fake_memory *next;
    enum fake_kind kind;
    uint8_t *bytes;
    size_t len;        /* as asked for */
    size_t mapped_len; /* 0: not ours to unmap */
    int fd;            /* HBM: of the memfd; -1 */
    uint32_t opened;   /* by handle */
    uint8_t *written;  /* HBM of ours: a flag a byte */
};

/* What a 64-byte IPC handle says. */
struct fake_handle {
    uint32_t magic;
    int32_t pid;
    int32_t fd;
    uint32_t is_event;
    uint64_t len;
    uint64_t padding[5];
};

enum { FAKE_HANDLE_MAGIC = 0xfa4e };

/* NULL: no memory. */
struct fake_memory *fake_memory_add(enum fake_kind kind, void *bytes, size_t len);
/* Which one holds address; NULL: none does. */
struct fake_memory *fake_memory_find(uint64_t address);
void fake_memory_remove(struct fake_memory *memory);
void fake_memory_reset(void);
size_t fake_memory_count(enum fake_kind kind);
size_t fake_memory_opened(void); /* by handle, each open counts */

struct fake_handle fake_memory_export(const struct fake_memory *memory);
/* NULL: there is no such memory. */
struct fake_memory *fake_memory_open(struct fake_handle handle);
bool fake_memory_is_hbm(const struct fake_memory *memory);

/* A shared mapping of another process's descriptor; NULL. */
void *fake_map_remote(struct fake_handle handle, size_t len);

/* Bytes of HBM were written; whether all of them were. */
void fake_memory_mark(struct fake_memory *memory, uint64_t address, size_t len);
bool fake_memory_is_written(const struct fake_memory *memory, uint64_t address, size_t len);

#endif
