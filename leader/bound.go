package leader

import (
	"context"
	"io"
	"net/http"
)

// bound ends every request with the term, also requests without a context of the caller, such as those of discovery.
type bound struct {
	ctx  context.Context
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bound) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(b.ctx, cancel)
	end := func() { stop(); cancel() }
	response, err := b.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	response.Body = boundBody{ReadCloser: response.Body, end: end}
	return response, nil
}

// boundBody releases the request's context when the body is closed.
type boundBody struct {
	io.ReadCloser
	end func()
}

// Close implements io.Closer.
func (b boundBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
