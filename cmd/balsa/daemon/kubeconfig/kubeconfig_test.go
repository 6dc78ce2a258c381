package kubeconfig

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func TestKubeconfigHasAContextPerServerAndTheFirstThatAnswersIsTaken(t *testing.T) {
	alive := httptest.NewTLSServer(http.NotFoundHandler())
	defer alive.Close()
	stopped, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	url := func(l net.Listener) string { return "https://" + l.Addr().String() }
	path := filepath.Join(t.TempDir(), "kubeconfig")
	for _, c := range []struct{ here, want string }{{alive.URL, ""}, {url(stopped), "balsa-three"}, {url(gone), "balsa-three"}} {
		data, err := Encode(c.here, []Server{{"one", url(stopped)}, {"two", url(gone)}, {"three", alive.URL}}, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := Write(path, data); err != nil {
			t.Fatal(err)
		}
		read, err := clientcmd.LoadFromFile(path)
		if err != nil || len(read.Contexts) != 4 || read.CurrentContext != "balsa" || read.Clusters["balsa-three"].Server != alive.URL {
			t.Fatalf("%+v, %v", read, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Error(info.Mode(), err)
		}
		if got := AnsweringContext(t.Context(), path); got != c.want {
			t.Errorf("%s: context %q, want %q", c.here, got, c.want)
		}
	}
}
