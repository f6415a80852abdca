/* SPDX-License-Identifier: Apache-2.0 */
static void fine_in_a_test(void)
{
#ifdef __SANITIZE_ADDRESS__
#endif
}
