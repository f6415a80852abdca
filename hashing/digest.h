/* SPDX-License-Identifier: Apache-2.0 */

/*
 * digest: keyed 64- and 128-bit names of bytes that are not blocks of a prompt: roots of chains,
 * fingerprints, images. A digest says what it is of (its domain), so that equal bytes in two roles
 * never share a name. Not cryptographic: without the secret nobody can aim for a collision.
 * Pure; any thread.
 */
#ifndef HASHING_DIGEST_H
#define HASHING_DIGEST_H

#include <stddef.h>
#include <stdint.h>

enum { DIGEST_SECRET_BYTES = 192 }; /* XXH3 wants at least 136 */

/* What a digest is of. Values are part of every name: never reuse or renumber one. */
enum digest_domain {
    DIGEST_ROOT = 1,        /* what changes a whole prompt: model, LoRA, salt, template arguments */
    DIGEST_FINGERPRINT = 2, /* identity of everybody who names blocks alike */
    DIGEST_MEDIA = 3,       /* an image, audio or file inside a prompt */
    DIGEST_AFFINITY = 4,    /* a session key, for rendezvous and ring */
    DIGEST_RESPONSE = 5,    /* the id of a response that an engine stores */
    DIGEST_BODY = 6,        /* the body of a request, to know it again */
    DIGEST_TOKEN_ROOT = 7,  /* what a chain of token blocks starts from: LoRA, salt */
    DIGEST_TOKEN_BLOCK = 8, /* a block of token ids behind its parent */
    DIGEST_TOKEN_ALIAS = 9, /* what an engine calls a block */
    DIGEST_ATTEMPT = 10,    /* the id of an attempt, as the engine was told it */
    DIGEST_ALIGNMENT = 11,  /* an agent's saved state */
    DIGEST_TOKEN_CHECK = 12, /* the token ids of one block, beside its name */
    DIGEST_LAYOUT = 13,      /* of an engine's pages: model, dtype, sizes */
};

struct digest_128 {
    uint64_t low;
    uint64_t high;
};

/* A digest over tagged fields, in the making. Small, and copyable at any point. */
struct digest {
    const uint8_t *secret; /* DIGEST_SECRET_BYTES; borrowed */
    struct digest_128 state;
};

/*
 * Makes a secret of bytes of any length and quality (a file's content, a passphrase): the same
 * bytes give the same secret on every host. It adds no entropy.
 */
void digest_secret_derive(uint8_t secret[DIGEST_SECRET_BYTES], const void *bytes, size_t len);

/* One run of bytes at once. bytes may be NULL when len is 0. */
uint64_t digest_64(const uint8_t *secret, enum digest_domain domain, const void *bytes, size_t len);
struct digest_128 digest_128(const uint8_t *secret, enum digest_domain domain, const void *bytes,
                             size_t len);

/*
 * Fields one by one. Tag, length and order of each field count: no two different lists of fields
 * are written alike, and an empty field is not a missing one.
 */
void digest_begin(struct digest *digest, const uint8_t *secret, enum digest_domain domain);
void digest_field(struct digest *digest, uint32_t tag, const void *bytes, size_t len);
void digest_field_u64(struct digest *digest, uint32_t tag, uint64_t value);

/* Up to DIGEST_U64_COUNT_MAX numbers as one field: two steps of hashing for all of them. */
enum { DIGEST_U64_COUNT_MAX = 8 };
void digest_field_u64s(struct digest *digest, uint32_t tag, const uint64_t *values, size_t count);

/* The digest of the fields so far; more may follow. The 64-bit form is never 0. */
uint64_t digest_end(const struct digest *digest);
struct digest_128 digest_end_128(const struct digest *digest);

#endif
