/* SPDX-License-Identifier: Apache-2.0 */

/*
 * token_name: names of an engine's cache blocks, made of the token ids in them and of all before
 * them: 128 bits, keyed. Whoever has the ids and the secret gives a block the same name, whatever
 * the engine calls it: the agent from the engine's events, the router from what /tokenize says. The
 * ids themselves need go nowhere. Pure; any thread.
 */
#ifndef HASHING_TOKEN_NAME_H
#define HASHING_TOKEN_NAME_H

#include <stddef.h>
#include <stdint.h>

#include "hashing/digest.h"

/*
 * What a chain of blocks starts from: the LoRA (as the engine names it) and the cache salt that
 * the request had; NULL, 0 where it had none.
 */
struct digest_128 token_name_root(const uint8_t *secret, const char *lora, size_t lora_len,
                                  const char *salt, size_t salt_len);

/*
 * The block of ids[0..id_count) behind parent (a root or a block). extra: a digest of what else
 * the engine tells blocks apart by (images); 0: nothing. .low is never 0 and may stand alone where
 * 64 bits do.
 */
struct digest_128 token_name_next(const uint8_t *secret, struct digest_128 parent,
                                  const uint32_t *ids, size_t id_count, uint64_t extra);

#endif
