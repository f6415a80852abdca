/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NAMED_H
#define NAMED_H

int named(void);

#endif
