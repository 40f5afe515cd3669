/*
 * Tests may use numbers, clocks and signals.
 */
#include <signal.h>
#include <time.h>

int main(void)
{
    char buffer[5000];
    signal(SIGPIPE, SIG_IGN);
    return (int)time(NULL) + (int)sizeof(buffer) + 123456;
}
