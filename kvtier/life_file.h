/* SPDX-License-Identifier: Apache-2.0 */

/*
 * life_file: a worker's life_record in the state directory, held locked for as long as the agent
 * speaks for the worker. Blocks, shortly; loop thread only.
 */
#ifndef KVTIER_LIFE_FILE_H
#define KVTIER_LIFE_FILE_H

#include <stdint.h>

#include "kvtier/life_record.h"

struct life_file {
    int fd; /* holds the lock; -1: nothing is held */
};

enum { LIFE_FILE_NAME_BYTES = 48 };

/* The name of a worker's file in the directory; worker: a digest of its name. */
void life_file_name(uint64_t worker, char name[LIFE_FILE_NAME_BYTES]);

/* Takes the worker's record, if nobody has it, and writes down that epoch's life begins: before it
 * says anything. LIFE_OVER: those of before, of which there are, are over. Else before is empty.
 * With LIFE_LIVING, LIFE_UNWRITABLE and directory "" nothing is held. */
enum life_proof life_file_take(struct life_file *file, const char *directory, uint64_t worker,
                               uint64_t epoch, uint64_t before[LIFE_EPOCH_COUNT_MAX]);

/* When nothing more is said. May be called twice. */
void life_file_release(struct life_file *file);

#endif
