// Package rotation decides how the cluster CA and the key of service-account tokens are replaced without an outage. It is
// pure: records and the time go in, the next record or the members that are awaited come out. control/cluster keeps the
// record in the store and carries it out on each server; control/auth/pki holds the keys themselves.
//
//	trust ──▶ issue ──▶ retire ──▶ done
//
//	trust   every member trusts the old CA and the new one; every server verifies tokens of both keys
//	issue   servers sign with the new CA and the new key; then agents renew their certificates, and every node the
//	        tokens of its pods
//	retire  the old CA and key do not count any more
//	done    every member has confirmed that
//
// A phase ends when every member on record has confirmed it: each writes into its own record which CAs it trusts, which CA
// signed its certificates and which key its tokens. Time decides nothing about members. The one wait by time is Grace:
// programs in pods read the file of their token again within a minute.
package rotation
