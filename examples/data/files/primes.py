"""Print the primes below a limit."""

import sys


def primes(limit: int) -> list[int]:
    sieve = [True] * max(limit, 2)
    sieve[0] = sieve[1] = False
    for n in range(2, int(limit**0.5) + 1):
        if sieve[n]:
            sieve[n * n :: n] = [False] * len(sieve[n * n :: n])
    return [n for n, is_prime in enumerate(sieve) if is_prime]


if __name__ == "__main__":
    print(*primes(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
