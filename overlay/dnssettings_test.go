package overlay

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDNSSettingsAreFollowed: a stub domain's names are asked of its resolver from when the ConfigMap names it, until it does
// no more; a fault in it leaves what was.
func TestDNSSettingsAreFollowed(t *testing.T) {
	w := newWorld(t)
	w.outside.Run("ip", "route", "add", "10.0.0.0/8", "via", nodeAddress)
	conn := w.outside.names(outsideAddress + ":53")
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.network.FollowDNSSettings(ctx, w.client) }()
	defer func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("FollowDNSSettings returned %v", err)
		}
	}()
	pod := w.pods["a"]
	eventually := func(name string, rcode int) {
		t.Helper()
		w.eventually(name+" "+miekg.RcodeToString[rcode], func() bool { return pod.resolve(name) == rcode })
	}
	maps := w.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	settings := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: DNSSettings, Namespace: metav1.NamespaceSystem},
		Data: map[string]string{"stubDomains": `{"corp.example": ["` + outsideAddress + `"]}`}}
	eventually("www.corp.example.", miekg.RcodeServerFailure)
	if _, err := maps.Create(ctx, settings, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("www.corp.example.", miekg.RcodeSuccess)
	settings.Data["stubDomains"] = "nonsense"
	if _, err := maps.Update(ctx, settings, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("more.corp.example.", miekg.RcodeSuccess)
	if err := maps.Delete(ctx, DNSSettings, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("again.corp.example.", miekg.RcodeServerFailure)
}

// names serves a resolver that knows every name.
func (s space) names(address string) net.PacketConn {
	s.T.Helper()
	var conn net.PacketConn
	if err := s.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", address)
		return err
	}); err != nil {
		s.T.Fatal(err)
	}
	server := &miekg.Server{PacketConn: conn, Handler: miekg.HandlerFunc(func(w miekg.ResponseWriter, r *miekg.Msg) {
		m := new(miekg.Msg)
		m.SetReply(r)
		m.Answer = []miekg.RR{&miekg.A{Hdr: miekg.RR_Header{Name: r.Question[0].Name, Rrtype: miekg.TypeA, Class: miekg.ClassINET, Ttl: 1}, A: net.IPv4(192, 0, 2, 77)}}
		_ = w.WriteMsg(m)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ActivateAndServe()
	}()
	s.T.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return conn
}

// resolve asks the cluster's DNS for a name and returns the code; -1: no answer.
func (s space) resolve(name string) int {
	var conn net.Conn
	if err := s.Do(func() (err error) {
		conn, err = net.Dial("udp", "10.96.0.10:53")
		return err
	}); err != nil {
		return -1
	}
	defer conn.Close()
	m := new(miekg.Msg)
	m.SetQuestion(name, miekg.TypeA)
	answer, _, err := (&miekg.Client{Timeout: 5 * time.Second}).ExchangeWithConn(m, &miekg.Conn{Conn: conn})
	if err != nil {
		return -1
	}
	return answer.Rcode
}
