/* CRC-32C (Castagnoli), by the processor's instruction where it has one, else by tables. Both
compiled parts of trikafka use this file.

The instruction has a latency of three cycles, and one can begin in each cycle. So long data is cut
into three lanes, which are computed side by side and then joined. Joining two lanes needs the sum
of the first lane followed by as many zeros as the second lane has bytes. This is a linear function
of the 32 bits of the sum, so four tables of 256 entries compute it for one length of the lanes. */

#ifndef TRIKAFKA_CRC32C_H
#define TRIKAFKA_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_LONG 4096 /* bytes of a lane; the short lanes take the rest of the data */
#define CRC32C_SHORT 256

static uint32_t crc32c_tables[8][256];
static uint32_t crc32c_past_long[4][256], crc32c_past_short[4][256];

/* Make the tables that continue a sum over `zeros` bytes of zero. */
static void crc32c_make_past(uint32_t past[4][256], size_t zeros) {
    uint32_t of_bit[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t sum = (uint32_t)1 << bit;
        for (size_t n = 0; n < zeros; n++) sum = sum >> 8 ^ crc32c_tables[0][sum & 0xFF];
        of_bit[bit] = sum;
    }
    for (int byte = 0; byte < 4; byte++)
        for (int value = 0; value < 256; value++) {
            uint32_t sum = 0;
            for (int bit = 0; bit < 8; bit++)
                if (value >> bit & 1) sum ^= of_bit[8 * byte + bit];
            past[byte][value] = sum;
        }
}

/* Make the tables. Must be called before any other function. */
static void crc32c_prepare(void) {
    for (int n = 0; n < 256; n++) {
        uint32_t sum = (uint32_t)n;
        for (int bit = 0; bit < 8; bit++) sum = sum & 1 ? sum >> 1 ^ 0x82F63B78u : sum >> 1;
        crc32c_tables[0][n] = sum;
    }
    for (int n = 0; n < 256; n++)
        for (int table = 1; table < 8; table++) {
            uint32_t before = crc32c_tables[table - 1][n];
            crc32c_tables[table][n] = before >> 8 ^ crc32c_tables[0][before & 0xFF];
        }
    crc32c_make_past(crc32c_past_long, CRC32C_LONG);
    crc32c_make_past(crc32c_past_short, CRC32C_SHORT);
}

static uint32_t crc32c_by_tables(uint32_t crc, const uint8_t *at, size_t size) {
    crc = ~crc;
    for (; size >= 8; at += 8, size -= 8) {
        crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8;
        crc ^= (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = crc32c_tables[7][crc & 0xFF] ^ crc32c_tables[6][crc >> 8 & 0xFF]
            ^ crc32c_tables[5][crc >> 16 & 0xFF] ^ crc32c_tables[4][crc >> 24]
            ^ crc32c_tables[3][at[4]] ^ crc32c_tables[2][at[5]]
            ^ crc32c_tables[1][at[6]] ^ crc32c_tables[0][at[7]];
    }
    for (; size; at++, size--) crc = crc >> 8 ^ crc32c_tables[0][(crc ^ *at) & 0xFF];
    return ~crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <nmmintrin.h>
#ifdef __clang__ /* has this instruction as a feature of its own */
#define CRC32C_TARGET __attribute__((target("sse4.2,crc32")))
#else
#define CRC32C_TARGET __attribute__((target("sse4.2")))
#endif
#define CRC32C_SUM uint64_t
#define CRC32C_WORD(sum, word) _mm_crc32_u64(sum, word)
#define CRC32C_BYTE(sum, byte) _mm_crc32_u8((uint32_t)(sum), byte)
static int crc32c_processor_can(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2);
}
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC32C_TARGET
#define CRC32C_SUM uint32_t
#define CRC32C_WORD(sum, word) __crc32cd(sum, word)
#define CRC32C_BYTE(sum, byte) __crc32cb(sum, byte)
static int crc32c_processor_can(void) { return 1; }
#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__) && !defined(__AARCH64EB__)
/* The compiler's options do not say that the processor has the instruction. The kernel knows, and
   the assembler accepts the instruction by name. */
#include <sys/auxv.h>
#define CRC32C_TARGET
#define CRC32C_SUM uint32_t
static inline uint32_t crc32c_word(uint32_t sum, uint64_t word) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(sum) : "r"(word));
    return sum;
}
static inline uint32_t crc32c_byte(uint32_t sum, uint8_t byte) {
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(sum) : "r"((uint32_t)byte));
    return sum;
}
#define CRC32C_WORD(sum, word) crc32c_word(sum, word)
#define CRC32C_BYTE(sum, byte) crc32c_byte(sum, byte)
static int crc32c_processor_can(void) {
    return (getauxval(AT_HWCAP) & (1ul << 7)) != 0; /* HWCAP_CRC32 */
}
#endif

#ifdef CRC32C_WORD

static inline uint32_t crc32c_past(uint32_t past[4][256], uint32_t sum) {
    return past[0][sum & 0xFF] ^ past[1][sum >> 8 & 0xFF]
        ^ past[2][sum >> 16 & 0xFF] ^ past[3][sum >> 24];
}

static inline uint64_t crc32c_load(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* Continue a sum over three lanes of `lane` bytes each. */
CRC32C_TARGET static uint32_t crc32c_three(
    uint32_t sum, const uint8_t *at, size_t lane, uint32_t past[4][256]
) {
    CRC32C_SUM first = sum, second = 0, third = 0;
    for (const uint8_t *end = at + lane; at < end; at += 8) {
        first = CRC32C_WORD(first, crc32c_load(at));
        second = CRC32C_WORD(second, crc32c_load(at + lane));
        third = CRC32C_WORD(third, crc32c_load(at + 2 * lane));
    }
    uint32_t joined = crc32c_past(past, (uint32_t)first) ^ (uint32_t)second;
    return crc32c_past(past, joined) ^ (uint32_t)third;
}

CRC32C_TARGET static uint32_t crc32c_by_processor(uint32_t crc, const uint8_t *at, size_t size) {
    CRC32C_SUM sum = (uint32_t)~crc;
    for (; size >= 3 * CRC32C_LONG; at += 3 * CRC32C_LONG, size -= 3 * CRC32C_LONG)
        sum = crc32c_three((uint32_t)sum, at, CRC32C_LONG, crc32c_past_long);
    for (; size >= 3 * CRC32C_SHORT; at += 3 * CRC32C_SHORT, size -= 3 * CRC32C_SHORT)
        sum = crc32c_three((uint32_t)sum, at, CRC32C_SHORT, crc32c_past_short);
    for (; size >= 8; at += 8, size -= 8) sum = CRC32C_WORD(sum, crc32c_load(at));
    for (; size; at++, size--) sum = CRC32C_BYTE(sum, *at);
    return ~(uint32_t)sum;
}

#else

static int crc32c_processor_can(void) { return 0; }
static uint32_t crc32c_by_processor(uint32_t crc, const uint8_t *at, size_t size) {
    return crc32c_by_tables(crc, at, size);
}

#endif
#endif
