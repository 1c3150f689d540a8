//! Which addresses events may be sent to. A webhook's URL comes from outside: without this, it could reach what only
//! this machine can reach.
//!
//! The address that is checked is the one that is connected to, so a name cannot change in between.

use std::net::IpAddr;
use std::str::FromStr;

/// A network that is allowed although it is not public: an address, or an address with the length of its prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    address: u128,
    prefix: u32,
}

impl FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str =
            "expected an address such as 10.0.0.7, or a network such as 10.0.0.0/8";
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| EXPECTED)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Ok(bits), str::parse).map_err(|_| EXPECTED)?;
        if length > bits {
            return Err(EXPECTED);
        }
        let prefix = 128 - bits + length;
        let address = bits_of(address);
        Ok(Self { address, prefix })
    }
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        let differs = self.address ^ bits_of(address);
        differs.checked_shr(128 - self.prefix).unwrap_or(0) == 0
    }
}

/// The bits of an address. Those of version 4 are mapped to version 6.
fn bits_of(address: IpAddr) -> u128 {
    let mapped = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    mapped.to_bits()
}

/// Networks of version 4 that are not public, or not one receiver's.
const RESERVED: [&str; 14] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
];

/// Public addresses of version 6, and what is not public among them: other protocols' addresses inside of them,
/// and documentation.
const PUBLIC: &str = "2000::/3";
const NOT_PUBLIC: [&str; 4] = ["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"];

/// The networks that are allowed besides the public ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Allowed(pub(crate) Vec<Network>);

impl Allowed {
    /// Whether the operator has named the address.
    pub(crate) fn names(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }

    /// Whether events may be sent there.
    pub(crate) fn permits(&self, address: IpAddr) -> bool {
        self.names(address) || is_public(address)
    }
}

fn is_public(address: IpAddr) -> bool {
    let is_in = |network: &&str| {
        network
            .parse::<Network>()
            .is_ok_and(|one| one.contains(address))
    };
    match address {
        IpAddr::V4(_) => !RESERVED.iter().any(is_in),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => is_public(address.into()),
            None => is_in(&PUBLIC) && !NOT_PUBLIC.iter().any(is_in),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_and_allowed_addresses_are_permitted() {
        let permitted = |networks: &[&str], address: &str| {
            let networks = networks.iter().map(|text| text.parse().expect("a network"));
            Allowed(networks.collect()).permits(address.parse().expect("an address"))
        };
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "172.32.0.1",
            "2606:4700:4700::1111",
            "::ffff:8.8.8.8",
        ] {
            assert!(permitted(&[], address), "{address}");
        }
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!permitted(&[], address), "{address}");
        }
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "127.0.0.1"),
            ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
            ("127.0.0.1", "::ffff:127.0.0.1", "::1"),
            ("fd00::/8", "fd12::1", "fc00::1"),
            ("0.0.0.0/0", "192.168.0.1", "::1"),
            ("::/0", "10.0.0.1", "::"),
        ] {
            assert!(permitted(&[network], inside), "{network} {inside}");
            assert!(
                network == "::/0" || !permitted(&[network], outside),
                "{network} {outside}"
            );
        }
        for wrong in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "host",
            "10.0.0.0/x",
        ] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
