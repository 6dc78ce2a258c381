// Package lan owns several machines on one computer. A Machine is a network namespace with its own address, directory
// and, if wanted, disk; a switch connects the machines. A test starts programs on them and causes faults of links,
// disks, processes and clocks.
//
//	client      m0       m1       m2        a namespace each, eth0 and a directory
//	  │eth0     │eth0    │eth0    │eth0
//	┌─┴─────────┴────────┴────────┴──┐
//	│ port3    port0    port1   port2│     the switch: a namespace with a bridge;
//	└────────────────────────────────┘     nftables drops what is cut, tbf slows
//
// With several subnets there is a bridge for each, and the switch routes between them.
//
// A machine may also have PID, mount and UTS namespaces of its own, with a PID 1 (Config.OwnInit). Then its processes,
// mounts and host name are those of a real machine; files, control groups and devices are still this computer's.
//
// Networks are isolated from each other and may use the same addresses. Nothing on the computer itself is changed: no
// address, no route, no clock. All names contain the process ID of their maker. New removes what was left by makers
// that ended without Close.
//
// How the faults are made, and how real they are:
//   - a cut link: frames dropped in the bridge (nftables), each direction apart;
//   - a slow link: a token bucket on both ends (tbf); the delay is that of the
//     queue, since kernels without netem have no fixed delay;
//   - a full disk: the machine's own ext4 (loop device) filled to the last block;
//   - a slow disk: a limit on the writes a second of the machine's control group
//     on the device below its directory (blkio in v1, io.max in v2);
//   - a clock that jumps: the process's copy of the kernel's clock_gettime (vDSO)
//     gets an offset, for CLOCK_REALTIME only, as after settimeofday(2).
//
// A Network's methods may be called from several goroutines, except New and Close.
package lan
