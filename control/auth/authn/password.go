package authn

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// errPassword does not say whether the name or the password is wrong.
var errPassword = errors.New("invalid user name or password")

// passwords are the users of a file, for HTTP basic authentication (RFC 7617). Passwords are kept as digests, so that a
// comparison takes the same time for all passwords.
type passwords map[string]account

type account struct {
	digest [sha256.Size]byte
	info   user.DefaultInfo
}

// readPasswords reads a CSV file of password, user, uid and, optionally, "group,group".
func readPasswords(path string) (passwords, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	in := csv.NewReader(file)
	in.FieldsPerRecord, in.TrimLeadingSpace, in.Comment = -1, true, '#'
	out := passwords{}
	for {
		record, err := in.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		line, _ := in.FieldPos(0)
		if len(record) < 3 || record[0] == "" || record[1] == "" {
			return nil, fmt.Errorf(`%s line %d: give password, user, uid and, if there are any, "group,group"`, path, line)
		}
		if _, twice := out[record[1]]; twice {
			return nil, fmt.Errorf("%s line %d: user %q is in an earlier line too", path, line, record[1])
		}
		a := account{digest: sha256.Sum256([]byte(record[0])), info: user.DefaultInfo{Name: record[1], UID: record[2]}}
		if len(record) > 3 && record[3] != "" {
			a.info.Groups = strings.Split(record[3], ",")
		}
		out[record[1]] = a
	}
}

// AuthenticateRequest implements authenticator.Request.
func (p passwords) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	name, password, ok := req.BasicAuth()
	if !ok {
		return nil, false, nil
	}
	known, there := p[name]
	digest := sha256.Sum256([]byte(password))
	if same := subtle.ConstantTimeCompare(digest[:], known.digest[:]) == 1; !same || !there {
		return nil, false, errPassword
	}
	req.Header.Del("Authorization")
	info := known.info
	return &authenticator.Response{User: &info}, true, nil
}
