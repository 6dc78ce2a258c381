package corpus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// Token is the bearer token of the user whose requests go to both servers: admin, of the group system:masters.
const (
	Token = "corpus-token"
	// Tokens is the file of tokens that both servers are given.
	Tokens = Token + `,admin,admin,"system:masters"` + "\n"
)

// Server is an API server that gets requests.
type Server struct {
	URL    string // https://host:port
	Client *http.Client
}

// Request is one request. Body is sent as it is.
type Request struct {
	Method, Path        string // the path with its query
	Accept, ContentType string // empty: the header is not sent
	Body                []byte
	As                  string // the user to impersonate; empty: none
}

// Answer is the answer to a request. Header holds the compared headers as "Name: value", sorted.
type Answer struct {
	Status int
	Header []string
	Body   []byte
}

// comparedHeaders are the headers that belong to the API's answer. Other headers depend on the server and the time.
var comparedHeaders = []string{"Content-Type", "Warning", "Location", "Retry-After", "Allow", "Accept-Patch", "Cache-Control", "Vary"}

func (s Server) open(ctx context.Context, r Request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, s.URL+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+Token)
	req.Header.Set("User-Agent", "corpus")
	req.Header.Set("Accept-Encoding", "identity")
	if r.Accept != "" {
		req.Header.Set("Accept", r.Accept)
	}
	if r.As != "" {
		req.Header.Set("Impersonate-User", r.As)
	}
	if r.ContentType != "" {
		req.Header.Set("Content-Type", r.ContentType)
	}
	return s.Client.Do(req)
}

// Ask sends a request and reads the whole answer.
func (s Server) Ask(ctx context.Context, r Request) (_ Answer, err error) {
	resp, err := s.open(ctx, r)
	if err != nil {
		return Answer{}, fmt.Errorf("%s %s: %w", r.Method, r.Path, err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("%s %s: %w", r.Method, r.Path, err)
	}
	return Answer{Status: resp.StatusCode, Header: headers(resp.Header), Body: body}, nil
}

func headers(h http.Header) []string {
	var out []string
	for _, name := range comparedHeaders {
		values := slices.Clone(h.Values(name))
		slices.Sort(values)
		for _, v := range values {
			out = append(out, name+": "+v)
		}
	}
	slices.SortFunc(out, strings.Compare)
	return out
}
