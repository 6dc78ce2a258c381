package aggregation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/transport"
)

// The documents of a target are held in memory. These constants bound the size of a document and the time to fetch it.
const (
	maxDocument    = 8 << 20
	fetchTimeout   = 5 * time.Second
	aggregatorUser = "system:aggregator" // the user that asks for OpenAPI documents, as in upstream
)

// ErrTooLarge: a document of a target is larger than maxDocument.
var ErrTooLarge = fmt.Errorf("the document is larger than %d MiB", maxDocument>>20)

// Fetch gets a document of the target as the aggregator's user and reads all of it. It implements openapi.Source.
func (t *target) Fetch(ctx context.Context, path string, header http.Header) (status int, answered http.Header, body []byte, err error) {
	return t.fetch(ctx, &user.DefaultInfo{Name: aggregatorUser}, path, header)
}

func (t *target) fetch(ctx context.Context, as user.Info, path string, header http.Header) (int, http.Header, []byte, error) {
	location, err := t.location(path, "")
	if err != nil {
		return 0, nil, nil, fmt.Errorf("%s: %w", t, err)
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	defer context.AfterFunc(t.open, cancel)()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("%s: %w", t, err)
	}
	for name, values := range header {
		r.Header[name] = values
	}
	answer, err := transport.NewAuthProxyRoundTripper(as.GetName(), "", as.GetGroups(), nil, t.transport).RoundTrip(r)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("%s%s: %w", t, path, err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxDocument+1))
	if err == nil && len(body) > maxDocument {
		err = ErrTooLarge
	}
	if err != nil {
		return 0, nil, nil, fmt.Errorf("%s%s: %w", t, path, err)
	}
	return answer.StatusCode, answer.Header, body, nil
}

// documentHandler is a target as an http.Handler, which upstream's discovery manager wants.
type documentHandler struct{ http.Handler }

// ServeHTTP answers with a document of the target.
func (d documentHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, ok := d.Handler.(*target)
	as, known := request.UserFrom(r.Context())
	if !ok || !known {
		refuse(w, r, apierrors.NewInternalError(errors.New("no target, or no user")))
		return
	}
	status, header, body, err := t.fetch(r.Context(), as, r.URL.Path, r.Header)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	for _, name := range []string{"Content-Type", "Etag"} {
		if v := header.Get(name); v != "" {
			w.Header().Set(name, v)
		}
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // writes to memory
}
