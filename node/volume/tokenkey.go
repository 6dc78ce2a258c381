package volume

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

// keyRetry is how soon a token is asked for again that the key to use has not signed: a server still signed with another.
const keyRetry = 2 * time.Second

// keyOf is the ID of the key that signed a token, by its header; empty when it names none.
func keyOf(jwt string) string {
	header, _, _ := strings.Cut(jwt, ".")
	data, err := base64.RawURLEncoding.DecodeString(header)
	if err != nil {
		return ""
	}
	var h struct {
		KeyID string `json:"kid"`
	}
	_ = json.Unmarshal(data, &h) // what is no header names no key
	return h.KeyID
}

// UseTokenKey has every token replaced that the key with this ID has not signed. Empty leaves all as they are.
func (m *Manager) UseTokenKey(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tokenKey == id {
		return
	}
	m.tokenKey = id
	m.tellTokens()
	if m.queue == nil || id == "" {
		return
	}
	for uid := range m.pods {
		m.queue.Add(uid)
	}
}

// wantedKey is the ID that UseTokenKey was given last.
func (m *Manager) wantedKey() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tokenKey
}

// TokenKey is the ID of the key that signed all tokens in volumes, or of the one to use when there are none; empty when
// several did.
func (m *Manager) TokenKey() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	common, first := m.tokenKey, true
	for _, keys := range m.signedBy {
		for _, key := range keys {
			if !first && key != common {
				return ""
			}
			common, first = key, false
		}
	}
	return common
}

// TokenKeyChanged is closed when the answer of TokenKey may have changed after the call.
func (m *Manager) TokenKeyChanged() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tokensChanged
}

// tellTokens closes what TokenKeyChanged gave. m.mu is held.
func (m *Manager) tellTokens() {
	close(m.tokensChanged)
	m.tokensChanged = make(chan struct{})
}

// noteTokens records which keys signed the tokens in a pod's volumes, once these are written. st.mu is held.
func (m *Manager) noteTokens(st *podState) {
	keys := make(map[string]string, len(st.tokens))
	for name, t := range st.tokens {
		keys[name] = keyOf(t.value)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(keys) == 0 && m.signedBy[st.uid] == nil {
		return
	}
	m.signedBy[st.uid] = keys
	m.tellTokens()
}
