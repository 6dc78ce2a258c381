package control

import (
	"maps"
	"net"
	"net/http"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// withoutLocalCompression has objects for clients of this machine and this process written without compression: the loopback link carries
// more than a compressor makes.
func withoutLocalCompression(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if ok && info.IsResourceRequest && info.Subresource == "" && r.Header.Get("Accept-Encoding") != "" && isLoopbackClient(r.RemoteAddr) {
			r = r.WithContext(r.Context())
			r.Header = maps.Clone(r.Header) // outer handlers may read theirs meanwhile
			r.Header.Del("Accept-Encoding")
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopbackClient reports whether a client's address is of the loopback link; requests of the process have such a one.
func isLoopbackClient(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	return err == nil && net.ParseIP(host).IsLoopback()
}
