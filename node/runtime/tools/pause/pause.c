/* The process of a pod's sandbox: it holds the namespaces open, reaps orphans
 * of a shared PID namespace and leaves on SIGTERM or SIGINT.
 *
 * It confines itself to the system calls that this takes. A filter of a few
 * instructions of its own is stricter than the runtime's default profile, and
 * spares each pod the compilation of that profile, which costs more CPU than
 * all the rest of starting a sandbox. Nobody may trace it either: in a shared
 * PID namespace a container could otherwise borrow its place. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#define WAIT __NR_pause
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#define WAIT __NR_ppoll
#else
#error "pause knows the system calls of x86-64 and arm64 only"
#endif

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ALLOW(number) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void leave(int sig) {
	(void)sig;
	_exit(0);
}

static void reap(int sig) {
	(void)sig;
	while (waitpid(-1, 0, WNOHANG) > 0)
		;
}

static int confine(void) {
	struct sock_filter filter[] = {
		LOAD(arch),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		LOAD(nr),
		ALLOW(WAIT),
		ALLOW(__NR_wait4),
		ALLOW(__NR_rt_sigreturn),
		ALLOW(__NR_restart_syscall),
		ALLOW(__NR_exit_group),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
	return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(void) {
	struct sigaction sa = {.sa_handler = leave};
	if (sigaction(SIGINT, &sa, 0) || sigaction(SIGTERM, &sa, 0))
		return 1;
	sa.sa_handler = reap;
	sa.sa_flags = SA_NOCLDSTOP;
	if (sigaction(SIGCHLD, &sa, 0))
		return 2;
	if (confine())
		return 3;
	for (;;)
		pause();
}
