package volume

import (
	"encoding/base64"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
)

func signedWith(key string, n int32) string {
	return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"`+key+`"}`)) + fmt.Sprintf(".%d.x", n)
}

func TestTokensAreReplacedAtOnceWhenAnotherKeySigns(t *testing.T) {
	m, client := newManager(t, configMap("cm", nil))
	var n atomic.Int32
	var key atomic.Pointer[string] // with which the server signs
	sign := func(k string) { key.Store(&k) }
	sign("k1")
	client.PrependReactor("create", "serviceaccounts", func(a k8stesting.Action) (bool, runtime.Object, error) {
		tr := a.(k8stesting.CreateAction).GetObject().(*authv1.TokenRequest)
		tr.Status = authv1.TokenRequestStatus{Token: signedWith(*key.Load(), n.Add(1)), ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour))}
		return true, tr, nil
	})
	run(t, m)
	if m.TokenKey() != "" {
		t.Error("without pods and without a key to use there is one")
	}
	pod := podWith("p", projected())
	dir := setUp(t, m, pod)["proj"].HostPath
	if m.TokenKey() != "k1" {
		t.Errorf("the token's key is %q", m.TokenKey())
	}
	m.UseTokenKey("k1")
	if n.Load() != 1 {
		t.Error("a token of the key in use was replaced")
	}

	m.UseTokenKey("k2") // this server still signs with the old one: it is asked again
	eventually(t, "it is asked for at once", func() bool { return n.Load() > 1 })
	if m.TokenKey() == "k2" {
		t.Error("the old key's token passes for one of the new key")
	}
	changed := m.TokenKeyChanged()
	sign("k2")
	eventually(t, "the file holds a token of the new key", func() bool {
		return strings.HasPrefix(read(t, dir, "token"), strings.SplitN(signedWith("k2", 0), ".", 2)[0])
	})
	eventually(t, "it is told", func() bool { return m.TokenKey() == "k2" })
	select {
	case <-changed:
	default:
		t.Error("nobody was woken")
	}
	count := n.Load()
	m.ClockSet()
	if read(t, dir, "token"); n.Load() != count {
		t.Error("a good token was replaced")
	}
	tearDown(t, m, pod)
	m.UseTokenKey("k3")
	if m.TokenKey() != "k3" {
		t.Errorf("without pods it is %q", m.TokenKey())
	}
}

func TestWhatIsNoTokenNamesNoKey(t *testing.T) {
	for _, text := range []string{"", ".", "x", "!!.a.b", base64.RawURLEncoding.EncodeToString([]byte("[]")) + ".a.b", base64.RawURLEncoding.EncodeToString([]byte(`{"kid":1}`)) + ".a"} {
		if got := keyOf(text); got != "" {
			t.Errorf("%q: %q", text, got)
		}
	}
}
