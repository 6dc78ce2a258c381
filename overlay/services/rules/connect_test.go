package rules

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/nettest"
)

// BenchmarkConnect opens connections through a host that has many services, sends a byte there and back on each, and resets
// it. All of it is this process's own time: that of the kernel's three hosts, of which one has the table. "direct" goes to a
// backend's address, "one" through always the same service, "any" through another each time.
func BenchmarkConnect(b *testing.B) {
	for _, size := range []int{100, 10000} {
		for _, way := range []string{"direct", "one", "any"} {
			b.Run(fmt.Sprint(way, "/", size), func(b *testing.B) { benchConnect(b, way, size) })
		}
	}
}

func benchConnect(b *testing.B, way string, size int) {
	client, router, server := nettest.New(b), nettest.New(b), nettest.New(b)
	client.Cable("eth0", "10.244.1.2/24", router, "client", "10.244.1.1/24")
	router.Cable("server", "10.244.2.1/24", server, "eth0", "10.244.2.2/24")
	client.Sh("ip route add default via 10.244.1.1")
	server.Sh("ip route add default via 10.244.2.1; ip route add local 10.128.0.0/9 dev lo")
	router.Sh("echo 1 > /proc/sys/net/ipv4/ip_forward; ip route add 10.128.0.0/9 via 10.244.2.2")
	table := open(b, router.FD(), true)
	apply(b, table, many(size))
	var listener net.Listener
	if err := server.Do(func() (err error) {
		listener, err = net.Listen("tcp4", "0.0.0.0:8080")
		return err
	}); err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	go echo(listener)
	err := client.Do(func() error {
		defer cpu(b)()
		for b.Loop() {
			i := size / 2
			if way == "any" {
				i = rand.IntN(size)
			}
			s := oneOfMany(i, 0)[0]
			to := unix.SockaddrInet4{Port: int(s.Port), Addr: s.ClusterIPs[0].As4()}
			if way == "direct" {
				to = unix.SockaddrInet4{Port: 8080, Addr: s.Everywhere[0].Addr().As4()}
			}
			if err := connect(&to); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// echo answers with what it is sent, until the listener is closed.
func echo(listener net.Listener) {
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return
	}
	defer file.Close()
	fd := int(file.Fd()) // blocking from here on
	for one := make([]byte, 1); ; {
		c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		if n, _ := unix.Read(c, one); n == 1 {
			_, _ = unix.Write(c, one)
		}
		_, _ = unix.Read(c, one)
		unix.Close(c)
	}
}

func connect(to unix.Sockaddr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return err
	}
	if err := unix.Connect(fd, to); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	one := []byte{1}
	if _, err := unix.Write(fd, one); err != nil {
		return err
	}
	_, err = unix.Read(fd, one)
	return err
}
