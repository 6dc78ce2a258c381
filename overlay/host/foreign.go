package host

import (
	"encoding/binary"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// generationPID is the attribute of a "new generation" message that says which process made it (NFTA_GEN_PROC_PID).
const generationPID = 2

// foreign tells whether one of the messages ends a transaction of another process. Every transaction on nftables ends
// with a message about the new generation.
func foreign(messages []syscall.NetlinkMessage) bool {
	for _, m := range messages {
		if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
			continue
		}
		if pid, ok := attribute32(m.Data, generationPID); !ok || !ownThread(pid) {
			return true
		}
	}
	return false
}

// attribute32 finds a 32-bit attribute behind the netfilter header of a message.
func attribute32(data []byte, kind uint16) (uint32, bool) {
	const netfilterHeader, header = 4, 4
	if len(data) < netfilterHeader {
		return 0, false
	}
	for data = data[netfilterHeader:]; len(data) >= header; {
		size := int(binary.NativeEndian.Uint16(data))
		if size < header || size > len(data) {
			return 0, false
		}
		if binary.NativeEndian.Uint16(data[2:])&0x3fff == kind && size >= header+4 {
			return binary.BigEndian.Uint32(data[header:]), true
		}
		data = data[min((size+3)&^3, len(data)):]
	}
	return 0, false
}

// ownThread tells whether a thread of this process has that number. A wrong no only costs a look at the kernel.
func ownThread(id uint32) bool {
	_, err := os.Stat("/proc/self/task/" + strconv.FormatUint(uint64(id), 10))
	return err == nil
}
