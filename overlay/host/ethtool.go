package host

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of ethtool (linux/ethtool.h): whether a link computes the checksums of the packets that it sends.
const (
	getTxChecksum = 0x16 // ETHTOOL_GTXCSUM
	setTxChecksum = 0x17 // ETHTOOL_STXCSUM
)

// offloadChecksums leaves the checksums of packets in the tunnel to the link below it, or has them computed before they enter.
// With offload some kernels and network cards send wrong checksums in packets whose addresses were translated.
func offloadChecksums(link string, offload bool) error {
	on, err := TxChecksum(link)
	if err != nil || (on != 0) == offload {
		return err
	}
	var value uint32
	if offload {
		value = 1
	}
	_, err = ethtoolValue(link, setTxChecksum, value)
	return err
}

// TxChecksum returns a number other than 0 if the link computes the checksums of the packets that it sends. It asks in the
// namespace of the calling thread.
func TxChecksum(link string) (uint32, error) { return ethtoolValue(link, getTxChecksum, 0) }

// ethtoolValue carries out a command with a struct ethtool_value.
func ethtoolValue(link string, command, value uint32) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	data := struct{ command, value uint32 }{command, value}
	request := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&data)}
	if copy(request.name[:unix.IFNAMSIZ-1], link) != len(link) {
		return 0, fmt.Errorf("the name of link %q is too long", link)
	}
	var pinned runtime.Pinner
	pinned.Pin(&data)
	defer pinned.Unpin()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return 0, errno
	}
	return data.value, nil
}
