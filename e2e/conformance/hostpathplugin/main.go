// Command hostpathplugin stands for the program of that name in upstream's image of csi-driver-host-path, which is not in
// the module proxy. It has only the mode that upstream's cases of Dynamic Resource Allocation use: the driver runs inside
// e2e.test, and this program carries the kubelet's connections to it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "hostpathplugin:", err)
		os.Exit(1)
	}
}

func run() error {
	endpoint := flag.String("endpoint", "", "path of the unix socket that the kubelet connects to")
	proxy := flag.String("proxy-endpoint", "", "tcp://ADDRESS that the driver connects to, once for each connection of the kubelet and in advance")
	_ = flag.Int("v", 0, "accepted, because upstream's cases pass it; nothing is logged")
	flag.Parse()
	address, isTCP := strings.CutPrefix(*proxy, "tcp://")
	if !isTCP || *endpoint == "" {
		return errors.New("--endpoint and --proxy-endpoint=tcp://ADDRESS are required; there is no other mode")
	}
	path := strings.TrimPrefix(*endpoint, "unix://")
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	kubelet, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	driver, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		from, err := kubelet.Accept()
		if err != nil {
			return err
		}
		to, err := driver.Accept()
		if err != nil {
			return err
		}
		go carry(from, to)
	}
}

// carry copies what each connection sends to the other until one ends.
func carry(a, b net.Conn) {
	var once sync.Once
	end := func() {
		_ = a.Close()
		_ = b.Close()
	}
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			once.Do(end)
		}()
	}
}
